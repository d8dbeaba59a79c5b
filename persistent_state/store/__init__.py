"""The store: the files of an application, its log and its runs. Nothing here knows Spark."""
