"""Pictures and tables that one chapter shows; what several show is in ``observe.show`` and ``simulator.plots``."""
