//! Running programs.

use std::process::Command;

/// A program to run in the repository's root.
pub struct Step {
    words: Vec<String>,
    variables: Vec<(&'static str, String)>,
}

impl Step {
    /// Cargo with these arguments.
    pub fn cargo(arguments: &[&str]) -> Self {
        Self::program(&[&["cargo"], arguments].concat())
    }

    /// A program with its arguments.
    pub fn program(words: &[&str]) -> Self {
        Self { words: words.iter().map(|&word| word.to_owned()).collect(), variables: Vec::new() }
    }

    /// The same with an environment variable.
    pub fn env(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.to_owned()));
        self
    }

    /// Runs it, after printing what anyone could type instead; fails when it does.
    pub fn run(&self) -> Result<(), String> {
        let variables: String =
            self.variables.iter().map(|(name, value)| format!("{name}='{value}' ")).collect();
        let line = format!("{variables}{}", self.words.join(" "));
        eprintln!("\n$ {line}");
        let mut command = Command::new(&self.words[0]);
        command.args(&self.words[1..]).envs(self.variables.iter().map(|(name, value)| (*name, value)));
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            Ok(status) => Err(format!("`{line}` failed: {status}")),
            Err(error) => Err(format!("`{line}` could not be started: {error}")),
        }
    }
}
