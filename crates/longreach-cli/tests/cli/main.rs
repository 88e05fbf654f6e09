//! The program from outside: its arguments, files, outputs and exit statuses.

mod arguments;
mod attend;
mod files;
mod process;
mod runs;
mod support;
