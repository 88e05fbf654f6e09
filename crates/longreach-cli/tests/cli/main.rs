//! The program from outside: its arguments, files, outputs and exit statuses.

mod arguments;
mod attend;
mod doctor;
mod files;
#[cfg(unix)]
mod launch;
#[cfg(unix)]
mod left;
mod process;
mod runs;
mod support;
