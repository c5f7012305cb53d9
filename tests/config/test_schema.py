"""The schema, what is made from it, and what it costs to import."""

import json
import subprocess
import sys

from pydantic import Field

from trainwright.config.fields import Section, affects
from trainwright.config.jsonschema import json_schema
from trainwright.config.reference import _sections, reference
from trainwright.config.schema import PLACEMENT, DistributedConfig, RunConfig


def references(schema):
    if isinstance(schema, dict):
        yield from [schema["$ref"]] if "$ref" in schema else []
        schema = list(schema.values())
    if isinstance(schema, list):
        for child in schema:
            yield from references(child)


def resolve(schema, reference):
    at = schema
    for part in reference.removeprefix("#/").split("/"):
        at = at[part]
    return at


def test_every_reference_leads_somewhere(adapters):
    schema = json.loads(json.dumps(json_schema(adapters)))
    assert schema["$schema"].endswith("2020-12/schema")
    for reference_ in references(schema):
        assert resolve(schema, reference_) is not None


def test_options_are_known_by_type(adapters):
    name, mapping = json_schema(adapters)["$defs"]["ModelConfig"]["anyOf"]
    assert {"enum": ["mlp", "transformer"]} in name["anyOf"]
    rules = {rule["if"]["properties"]["type"]["const"]: rule["then"] for rule in mapping["allOf"]}
    assert {"type", "params", "hidden", "dropout"} <= set(rules["mlp"]["properties"])
    assert "hidden" not in rules["transformer"]["properties"]
    assert rules["mlp"]["additionalProperties"] is False


def test_numbers_may_be_variables():
    epochs = json_schema()["$defs"]["TrainingConfig"]["properties"]["epochs"]
    assert {"$ref": "#/$defs/Variable"} in epochs["anyOf"]


def test_every_key_is_explained():
    definitions = RunConfig.model_json_schema()["$defs"]
    unexplained = [
        f"{section}.{key}"
        for section, schema in definitions.items()
        for key, value in schema["properties"].items()
        if key != "type" and "description" not in value and "$ref" not in json.dumps(value)
    ]
    assert unexplained == []


def undeclared(section, path=""):
    """Return the fields that do not say what they change, and are no sections whose fields do."""
    for name, field in section.model_fields.items():
        inner = [one for one in _sections(field) if affects(field) is None]
        for one in inner:
            yield from undeclared(one, f"{path}{name}.")
        if not inner and affects(field) not in ("bits", "record", "placement"):
            yield f"{path}{name}"


def test_every_field_is_declared():
    assert list(undeclared(RunConfig)) == []


def test_a_field_that_is_not_declared_is_found():
    class Careless(Section):
        inner: DistributedConfig = DistributedConfig()
        plain: int = 0
        optional: float | None = Field(None, gt=0)

    assert list(undeclared(Careless)) == ["plain", "optional"]


def test_the_place_of_a_run_is_how_it_reads_device_threads_and_processes():
    assert PLACEMENT == (
        "data.cache",
        "data.workers",
        "data.prefetch",
        "data.timeout",
        "training.device",
        "training.threads",
        "distributed.enabled",
        "distributed.nproc",
        "distributed.nnodes",
        "distributed.rdzv_endpoint",
        "distributed.rdzv_id",
        "distributed.rdzv_timeout",
        "distributed.strategy",
        "distributed.shard",
        "distributed.tensor",
        "distributed.pipeline",
        "distributed.schedule",
        "distributed.wrap",
        "distributed.min_num_params",
        "distributed.reshard_after_forward",
        "distributed.max_restarts",
        "distributed.backend",
    )


def test_reference_has_every_section_and_option(adapters):
    text = reference(adapters)
    for words in (
        "## `training.early_stopping`",
        "## `training.scheduler` of type `plateau`",
        "| `keep_last` | ",
        "### `mlp`",
        "`momentum`",
    ):
        assert words in text
    assert (
        "| `seed` | a whole number of at least 0 and below 9223372036854775808 | `0` | bits | the root"
        in text
    )
    assert "| `name` | " in text
    assert "| placement | CPU threads" in text
    assert "## `tracking`" in text
    assert "| `type` | text | required | record |" in text


def test_import_brings_no_heavy_library():
    code = (
        "import sys; from trainwright.config import load; load({'model': 'mlp'});"
        "print([name for name in ('numpy', 'torch', 'pandas', 'sklearn', 'rich') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
