"""Tasks: tool calls that go on after their request is answered."""
