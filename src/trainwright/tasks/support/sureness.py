"""Words for what probabilities say beyond the answers that follow from them."""

from __future__ import annotations

from collections.abc import Mapping

OF_PROBABILITIES: Mapping[str, str] = {
    "worse": "Its probabilities are worse than the constant answer's: it is far too sure of wrong "
    "answers, so do not use them as they are.",
    "better": "Its probabilities do tell more than chance: rank rows by them, or answer from another "
    "threshold (below).",
}
