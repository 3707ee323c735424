//! Writes the seeds of each target where libFuzzer looks for them.

fn main() -> std::io::Result<()> {
    for (name, _, seeds) in duetime_fuzz::TARGETS {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(name);
        std::fs::create_dir_all(&folder)?;
        for (number, seed) in seeds.iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{number}")), seed)?;
        }
    }
    Ok(())
}
