//! `inference-node --config FILE`

use std::process::ExitCode;

use inference_node::Config;

fn main() -> ExitCode {
    service_runtime::process::run("inference-node", |config: Config, shutdown| async move {
        let running = config.build().await?.serve(shutdown).await?;
        running.finished().await?;
        Ok(())
    })
}
