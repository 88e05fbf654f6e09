//! The program from outside: its arguments, files, outputs and exit statuses.

mod arguments;
mod attend;
mod bench;
mod doctor;
#[cfg(target_os = "linux")]
mod drills;
mod files;
#[cfg(target_os = "linux")]
mod launch;
#[cfg(target_os = "linux")]
mod left;
#[cfg(target_os = "linux")]
mod limits;
mod messages;
mod outputs;
mod process;
#[cfg(target_os = "linux")]
mod processes;
#[cfg(target_os = "linux")]
mod readme;
mod runs;
mod support;
