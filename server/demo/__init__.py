"""The main job in one command: a team surveys a folder through a real server."""
