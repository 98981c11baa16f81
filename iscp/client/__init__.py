"""The Python client, and what its calls take (docs/api.md)."""

from iscp.client.admin_client import Client
from iscp.model.api.api_requests import ChangeVerb, JobChange, JobName

__all__ = ["ChangeVerb", "Client", "JobChange", "JobName"]
