//! `registry --config FILE`

use std::process::ExitCode;

use registry::Config;

fn main() -> ExitCode {
    service_runtime::process::run("registry", |config: Config, shutdown| async move {
        config
            .build()
            .await?
            .serve(shutdown)
            .await?
            .finished()
            .await?;
        Ok(())
    })
}
