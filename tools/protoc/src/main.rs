//! As much of protoc as prost-build asks for: compile .proto files into one descriptor set.
//!
//! Understands `-I DIR`, `-IDIR`, `-o FILE`, `--descriptor_set_out=FILE`, `--version`, and takes
//! `--include_imports` and `--include_source_info` as given (both are always on).

use std::{env, error::Error, fs, path::PathBuf};

use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let mut includes: Vec<PathBuf> = Vec::new();
    let mut files: Vec<PathBuf> = Vec::new();
    let mut out: Option<PathBuf> = None;
    let mut args = env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--version" => {
                println!("libprotoc 27.0");
                return Ok(());
            }
            "-I" => includes.push(args.next().ok_or("-I needs a folder")?.into()),
            "-o" => out = Some(args.next().ok_or("-o needs a file")?.into()),
            "--include_imports" | "--include_source_info" => {}
            other if other.starts_with("-I") => includes.push(other[2..].into()),
            other if other.starts_with("--descriptor_set_out=") => {
                out = Some(other["--descriptor_set_out=".len()..].into());
            }
            other if other.starts_with("--experimental") => {}
            other if other.starts_with('-') => return Err(format!("unknown option {other}").into()),
            file => files.push(file.into()),
        }
    }
    let mut compiler = protox::Compiler::new(includes)?;
    compiler.include_imports(true).include_source_info(true).open_files(files)?;
    let out = out.ok_or("-o FILE is missing")?;
    fs::write(out, compiler.file_descriptor_set().encode_to_vec())?;
    Ok(())
}
