"""Policies as YAML files: read, checked, published."""

from infra.policies.files import PolicyFileError, load_policy
from infra.policies.publish import current_policy, publish_policy

__all__ = ["PolicyFileError", "current_policy", "load_policy", "publish_policy"]
