"""What tasks share: the functions of metrics, columns of targets, links and the worst rows."""
