"""Settings of the model by which tools are found by meaning. Reads no environment."""

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["EmbeddingSetting"]


class EmbeddingSetting(BaseModel):
    """A model behind an OpenAI-style `/v1/embeddings`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(
        pattern=r"^https?://\S+$", description="Base URL, such as `http://127.0.0.1:30000/v1`."
    )
    model: str = Field(min_length=1, description="Its name there.")
    api_key_env: str | None = Field(
        default=None, description="The environment variable that holds the key, if it needs one."
    )
    query_prefix: str = Field(
        default="", description="Text put before what is searched for, if the model wants one."
    )
    timeout_s: float = Field(default=30.0, gt=0, description="Seconds that one request may take.")
