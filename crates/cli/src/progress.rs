//! Progress on standard error, for a person only: nothing when it is not a terminal.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar over bytes; `total` 0 shows a spinner.
pub fn bytes(what: &str, total: u64) -> ProgressBar {
    let bar = if total == 0 {
        ProgressBar::new_spinner()
    } else {
        ProgressBar::new(total)
    };
    let style = if total == 0 {
        "{spinner} {msg} {bytes} {binary_bytes_per_sec}"
    } else {
        "{msg} [{bar:30}] {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}"
    };
    styled(bar, style, what)
}

/// A spinner while something is waited for.
pub fn waiting(what: &str) -> ProgressBar {
    styled(ProgressBar::new_spinner(), "{spinner} {msg}", what)
}

fn styled(bar: ProgressBar, template: &str, what: &str) -> ProgressBar {
    bar.set_style(ProgressStyle::with_template(template).expect("the template is valid"));
    bar.set_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(100));
    bar
}
