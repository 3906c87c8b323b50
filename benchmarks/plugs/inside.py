"""What is alive inside the server process: for the soak, which checks that nothing is left."""

import asyncio
import gc

from guildry.tools.python import reads


@reads
async def inside() -> dict[str, int]:
    """Count the tasks of the event loop, after what is garbage has been collected."""
    gc.collect()
    return {"tasks": len(asyncio.all_tasks()), "objects": len(gc.get_objects())}


@reads
async def wait(seconds: float) -> str:
    """Wait."""
    await asyncio.sleep(seconds)
    return "waited"
