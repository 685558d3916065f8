//! What a command answers with: one value, as text or as JSON, and an exit code.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;

use serde::Serialize;
use serde_json::Value;

/// A command's result.
pub struct Outcome {
    text: String,
    /// `None` when everything was printed already.
    json: Option<Value>,
    /// Whether the command found what it was asked to check to be wrong.
    refused: Option<String>,
}

impl Outcome {
    /// A value with its text.
    pub fn new(value: &impl Serialize, text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            json: Some(serde_json::to_value(value).expect("an outcome has string keys only")),
            refused: None,
        }
    }

    /// A value whose text was printed already, or has none.
    pub fn silent(value: &impl Serialize) -> Self {
        Self::new(value, "")
    }

    /// Nothing further to print.
    pub fn printed() -> Self {
        Self {
            text: String::new(),
            json: None,
            refused: None,
        }
    }

    /// The same, found to be wrong: exit code 1 and one line of reason.
    pub fn refused(mut self, reason: impl Into<String>) -> Self {
        self.refused = Some(reason.into());
        self
    }

    /// Prints it and gives the exit code.
    pub fn finish(self, json: bool) -> io::Result<ExitCode> {
        match self.print(json) {
            // Whoever read it has seen enough: `chancery ... | head`.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            printed => printed.map_err(unwritten)?,
        }
        Ok(match self.refused {
            None => ExitCode::SUCCESS,
            Some(reason) => {
                complain(&reason);
                ExitCode::from(REFUSED)
            }
        })
    }
}

impl Outcome {
    fn print(&self, json: bool) -> io::Result<()> {
        let mut out = io::stdout().lock();
        match &self.json {
            Some(value) if json => {
                serde_json::to_writer_pretty(&mut out, value)?;
                writeln!(out)?;
            }
            _ if !json && !self.text.is_empty() => {
                writeln!(out, "{}", self.text.trim_end_matches('\n'))?;
            }
            _ => {}
        }
        out.flush()
    }
}

/// Says which file could not be written.
pub fn unwritten(error: io::Error) -> io::Error {
    io::Error::new(
        error.kind(),
        format!("cannot write to standard output: {error}"),
    )
}

/// The command was used wrongly: exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct WrongUse(pub String);

/// The exit code of an error, after its one line on standard error.
pub fn fail(error: &anyhow::Error) -> ExitCode {
    complain(&sentence(error));
    match error.downcast_ref::<WrongUse>() {
        Some(_) => ExitCode::from(WRONG_USE),
        None => ExitCode::from(REFUSED),
    }
}

/// An error and its causes in one line; a cause that the line says already is left out.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain() {
        // A status says its causes itself.
        let status = cause.downcast_ref::<tonic::Status>();
        let cause = status.map_or_else(|| cause.to_string(), status_sentence);
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            let _ = write!(text, ": {cause}");
        }
        if status.is_some() {
            break;
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn status_sentence(status: &tonic::Status) -> String {
    let text = api::client::explain(status);
    match api::reason(status) {
        Some(reason) => format!("{text} ({reason})"),
        None if text.is_empty() => status.code().description().to_owned(),
        None => text,
    }
}

fn complain(line: &str) {
    // Nobody is left to tell when standard error is closed.
    let _ = writeln!(io::stderr(), "chancery: {line}");
}

/// Rows as aligned columns, the first row the heading.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A heading of [`table`].
pub fn heading(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// A number of bytes for a person.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    match unit {
        0 => format!("{count} B"),
        _ => format!("{value:.1} {}", UNITS[unit]),
    }
}

/// Unix seconds as UTC, `-` for 0.
pub fn time(seconds: i64) -> String {
    if seconds == 0 {
        return "-".to_owned();
    }
    // Days to a civil date: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms".
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let day_of_era = z.rem_euclid(146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_index = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_index + 2) / 5 + 1;
    let month = if month_index < 10 {
        month_index + 3
    } else {
        month_index - 9
    };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}

const REFUSED: u8 = 1;
const WRONG_USE: u8 = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_civil() {
        assert_eq!(time(0), "-");
        assert_eq!(time(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(time(1_700_000_000), "2023-11-14 22:13:20");
    }

    #[test]
    fn tables_are_aligned_and_sizes_short() {
        let rows = vec![
            heading(&["name", "state"]),
            heading(&["tiny-qwen3", "ready"]),
        ];
        assert_eq!(table(&rows), "name        state\ntiny-qwen3  ready\n");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(1536), "1.5 KiB");
    }

    #[test]
    fn an_error_is_one_line_without_repeats() {
        let error = anyhow::anyhow!("no such\nfile").context("cannot read a: no such\nfile");
        assert_eq!(sentence(&error), "cannot read a: no such file");
    }
}
