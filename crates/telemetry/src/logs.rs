use serde::Deserialize;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// The `[log]` section of a config.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LogSettings {
    /// How a line looks.
    pub format: LogFormat,
    /// Which events are written: directives as `info,chancery=debug`.
    pub filter: String,
}

impl Default for LogSettings {
    fn default() -> Self {
        Self {
            format: LogFormat::Text,
            filter: "info".to_owned(),
        }
    }
}

/// How a log line looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For a person.
    Text,
    /// One JSON object a line.
    Json,
}

/// Logs cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum LogsError {
    /// The filter is malformed.
    #[error("log.filter is not a list of directives")]
    Filter(#[from] tracing_subscriber::filter::ParseError),
    /// They are set up already.
    #[error("logs are set up already")]
    Twice(#[from] tracing_subscriber::util::TryInitError),
}

impl LogSettings {
    /// Writes this process's events to standard error.
    pub fn install(&self) -> Result<(), LogsError> {
        let registry = tracing_subscriber::registry().with(EnvFilter::try_new(&self.filter)?);
        let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
        match self.format {
            LogFormat::Text => registry.with(lines.with_ansi(false)).try_init()?,
            LogFormat::Json => registry.with(lines.json().flatten_event(true)).try_init()?,
        }
        Ok(())
    }
}
