"""Studies: several runs with one question, such as cross-validation and the comparison of models.

A study has a folder of its own beside its runs. Its runs are ordinary runs: they are resumed, reproduced and
reported as any other.

runs/<experiment>/<kind>-<time>-<random>/
    study.json          the question, the runs and the status; written before each run
    result.json         the result; written at the end
    report.html
    lock                held by the process that works on the study
"""
