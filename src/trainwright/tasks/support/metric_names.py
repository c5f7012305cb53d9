"""Other names of metrics, as other libraries and papers write them."""

from __future__ import annotations

from functools import cache

from trainwright.config.synonyms import fold

# Our name -> the others. Case, dashes and underscores do not matter.
_OTHERS = {
    "accuracy": "acc accuracy_score top1 top_1_accuracy categorical_accuracy binary_accuracy",
    "average_precision": "ap average_precision_score pr_auc prauc auc_pr aucpr auprc",
    "balanced_accuracy": "bacc balanced_acc balanced_accuracy_score uar",
    "bits_per_byte": "bpb",
    "brier": "brier_score brier_score_loss neg_brier_score",
    "explained_variance": "explained_variance_score",
    "f1": "f1_score f_score f_measure",
    "f1_macro": "macro_f1",
    "f1_micro": "micro_f1",
    "f1_weighted": "weighted_f1",
    "dice": "dice_score dice_coefficient mean_dice dsc",
    "iou": "mean_iou miou jaccard_index mean_jaccard",
    "kappa": "cohen_kappa cohen_kappa_score cohens_kappa",
    "log_loss": "logloss mlogloss multi_logloss binary_logloss neg_log_loss nll xent cross_entropy",
    "mae": "l1 mean_absolute_error neg_mean_absolute_error",
    "mape": "mean_absolute_percentage_error neg_mean_absolute_percentage_error",
    "mcc": "matthews matthews_corrcoef",
    "medae": "median_absolute_error neg_median_absolute_error",
    "mse": "l2 mean_squared_error neg_mean_squared_error",
    "perplexity": "ppl",
    "pixel_accuracy": "pixel_acc",
    "precision": "precision_score",
    "precision_macro": "macro_precision",
    "precision_micro": "micro_precision",
    "precision_weighted": "weighted_precision",
    "r2": "r2_score r_squared coefficient_of_determination",
    "recall": "recall_score sensitivity tpr",
    "recall_macro": "macro_recall",
    "recall_micro": "micro_recall",
    "recall_weighted": "weighted_recall",
    "rmse": "root_mean_squared_error neg_root_mean_squared_error",
    "roc_auc": "auc auroc roc roc_auc_score auc_roc area_under_roc area_under_curve",
    "subset_accuracy": "exact_match",
    "top_3_accuracy": "top3 top3_accuracy",
    "top_5_accuracy": "top5 top5_accuracy",
}


def meant(name: str) -> str | None:
    """Return our name of a metric that has another name elsewhere; None if it is none of these."""
    return _table().get(fold(name))


@cache
def _table() -> dict[str, str]:
    ours = {fold(name): name for name in _OTHERS}
    return ours | {fold(other): name for name, others in _OTHERS.items() for other in others.split()}
