//! longreach-device
