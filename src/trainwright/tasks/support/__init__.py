"""Parts of several tasks: the functions of metrics, columns of targets, link functions and the worst rows."""
