"""From tidy frames to numbers, tables, figures and verdicts. Nothing here trains or reads a run folder."""
