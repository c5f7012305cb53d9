"""Systems that search by themselves: they propose trials, and decide which of them continue."""
