"""The live service of a run or an exported model, over HTTP."""
