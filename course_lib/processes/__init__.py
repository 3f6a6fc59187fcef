"""Processes, however they were started: what ranks and gradings leave behind is found and ended here."""
