//! `key-service --config FILE`

use std::process::ExitCode;

use key_service::Config;

fn main() -> ExitCode {
    service_runtime::process::run("key-service", |config: Config, shutdown| async move {
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
