"""Training steps of the user's own: one optimizer or several, updated by us or when the step says so."""
