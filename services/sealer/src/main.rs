//! `sealer --config FILE`

use std::process::ExitCode;

use sealer::Config;

fn main() -> ExitCode {
    service_runtime::process::run("sealer", |config: Config, shutdown| async move {
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
