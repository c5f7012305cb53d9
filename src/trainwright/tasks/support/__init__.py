"""What tasks share: the functions of metrics, columns of targets, link functions and the worst rows."""
