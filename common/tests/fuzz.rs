//! Runs the fuzz targets on any toolchain, with their seeds and with edits of these. `make fuzz` searches longer,
//! guided by code coverage.

#[path = "../../fuzz/src/edits.rs"]
mod edits;
#[path = "../../fuzz/src/lib.rs"]
#[expect(unreachable_pub, reason = "the fuzz crate exports them to its targets")]
mod targets;

#[test]
fn no_parser_breaks_at_its_seeds_or_at_edits_of_them() {
    edits::drive(targets::TARGETS);
}

#[test]
fn each_target_is_one_line_over_its_function() {
    edits::check_files(targets::TARGETS, "fuzz_targets", "duetime_fuzz");
}
