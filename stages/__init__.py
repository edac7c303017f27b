"""Stages: verbs, one state machine each, that rewrite a turn's event stream."""
