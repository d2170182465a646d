"""Where images come from: data sets as they lie on disk, the pipeline that reads them, and how they are made."""
