"""Commands that go into running tasks: exec, shell, attach, port-forward."""
