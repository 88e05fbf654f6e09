//! longreach-shmem
