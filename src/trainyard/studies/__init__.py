"""Several runs with one question: cross-validation, and the comparison of models.

A study has a folder of its own beside the runs that it trains, which are ordinary runs: they are resumed, reproduced and
reported as any other.

runs/<experiment>/<kind>-<time>-<random>/
    study.json          what was asked, the runs, and how it stands; written before each run
    result.json         what came out; written at the end
    report.html
    lock                held by the process that works on the study
"""
