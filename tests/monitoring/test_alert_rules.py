"""The alert rules, judged by Prometheus's own tool on simulated metrics."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from trainwright.errors import InputError
from trainwright.monitoring.alerts import alerts, rules

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(PROMTOOL is None, reason="there is no promtool: apt install prometheus")
INFO = ('trainwright_model_info{run="r"}', "1x60")
QUIET = {'trainwright_requests_total{code="200"}': "0+600x60", INFO[0]: INFO[1]}
# The series of metrics, a value a minute, and the alerts that fire after 30 minutes, with a label.
CASES: dict[str, tuple[dict[str, str], dict[str, dict[str, str]]]] = {
    "quiet": (
        {
            **QUIET,
            'trainwright_requests_total{code="422"}': "0+20x60",
            'trainwright_drift_score{column="a"}': "0.9x60",
            "trainwright_drift_alarm": "0x60",
            "trainwright_queue_rows": "64x60",
        },
        {},
    ),
    "down": ({'trainwright_requests_total{code="200"}': "0x60"}, {"TrainwrightDown": {}}),
    "errors": ({**QUIET, 'trainwright_requests_total{code="503"}': "0+30x60"}, {"TrainwrightErrors": {}}),
    "overload": ({**QUIET, 'trainwright_requests_total{code="429"}': "0+60x60"}, {"TrainwrightOverload": {}}),
    "refused": ({**QUIET, 'trainwright_requests_total{code="422"}': "0+60x60"}, {"TrainwrightRefused": {}}),
    "slow": (
        {
            **QUIET,
            'trainwright_request_seconds_bucket{le="1"}': "0+90x60",
            'trainwright_request_seconds_bucket{le="5"}': "0+100x60",
            'trainwright_request_seconds_bucket{le="+Inf"}': "0+100x60",
        },
        {"TrainwrightSlow": {}},
    ),
    "queue": ({**QUIET, "trainwright_queue_rows": "1500x60"}, {"TrainwrightQueue": {}}),
    "several models": (
        {
            **QUIET,
            'trainwright_model_info{run="r", role="main", instance="1"}': "1x60",
            'trainwright_model_info{run="s", role="main", instance="2"}': "1x60",
            'trainwright_model_info{run="s", role="shadow", instance="1"}': "1x60",
            'trainwright_model_info{run="r", role="main", instance="2"}': "0x60",
        },
        {"TrainwrightModels": {}},
    ),
    "two services": (
        {
            **QUIET,
            'trainwright_requests_total{code="200", job="other"}': "0+90000x60",
            'trainwright_requests_total{code="503", job="svc"}': "0+1x60",
            'trainwright_requests_total{code="200", job="svc"}': "0+9x60",
            'trainwright_model_info{run="a", role="main", job="other"}': "1x60",
            'trainwright_model_info{run="b", role="main", job="svc"}': "1x60",
        },
        {"TrainwrightErrors": {}},
    ),
    "a replica": (
        {**QUIET, 'up{job="svc", instance="1"}': "0x60", 'up{job="svc", instance="2"}': "1x60"},
        {"TrainwrightReplicaDown": {}},
    ),
    "drift": (
        {
            **QUIET,
            'trainwright_drift_score{column="charge", replica="1"}': "12x60",
            'trainwright_drift_score{column="age", replica="1"}': "0.2x60",
            'trainwright_drift_alarm{replica="1"}': "1x60",
        },
        {"TrainwrightDrift": {"column": "charge"}},
    ),
}


def test_every_alert_is_tested() -> None:
    assert {one.name for one in alerts(job="svc")} == {name for _, fired in CASES.values() for name in fired}


def test_the_rules_are_yaml() -> None:
    (group,) = YAML(typ="safe").load(rules(labels={"team": "risk: a"}))["groups"]
    assert [rule["alert"] for rule in group["rules"]] == [one.name for one in alerts()]
    assert group["rules"][0]["labels"] == {"severity": "critical", "team": "risk: a"}


@pytest.mark.parametrize(("latency", "queue"), [(0, 5), (1, 0), (float("nan"), 5)])
def test_limits_are_positive(latency: float, queue: int) -> None:
    with pytest.raises(InputError, match="positive"):
        rules(latency, queue)


@pytest.mark.services
@needs_promtool
def test_promtool_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yml").write_text(rules())
    assert f"{len(alerts())} rules found" in _promtool(tmp_path, "check", "rules", "rules.yml")


@pytest.mark.services
@needs_promtool
@pytest.mark.parametrize("name", CASES)
def test_alerts_fire(name: str, tmp_path: Path) -> None:
    series, fired = CASES[name]
    (tmp_path / "rules.yml").write_text(rules(job="svc"))
    test = {
        "rule_files": ["rules.yml"],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": one, "values": values} for one, values in series.items()],
                "promql_expr_test": [
                    {
                        "expr": f'count by (alertname{labels}) (ALERTS{{alertstate="firing"}})',
                        "eval_time": "30m",
                        "exp_samples": [
                            {"labels": _labels({"alertname": alert, **fired[alert]}), "value": 1}
                            for alert in fired
                        ],
                    }
                    for labels in [", column" if name == "drift" else ""]
                ],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(json.dumps(test))
    assert "SUCCESS" in _promtool(tmp_path, "test", "rules", "test.yml")


def _labels(labels: dict[str, str]) -> str:
    return "{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def _promtool(folder: Path, *words: str) -> str:
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
