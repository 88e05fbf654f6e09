//! longreach
