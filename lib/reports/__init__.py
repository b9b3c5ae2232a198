"""One run of one notebook: checked parameters, a place for its results, claims as it judges
them, and pages to read."""

from lib.reports.display import brief, say, show, tally
from lib.reports.report import Report, blocks_named, domains_named, start

__all__ = ["Report", "blocks_named", "brief", "domains_named", "say", "show", "start", "tally"]
