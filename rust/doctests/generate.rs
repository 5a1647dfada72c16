// SPDX-License-Identifier: GPL-2.0

//! Makes a KUnit suite of the examples in the documentation of the crate `perf`.
//!
//! The kernel does the same for its own crate, with `scripts/rustdoc_test_builder.rs` and
//! `scripts/rustdoc_test_gen.rs`. They support only the crate `kernel`, and only the kernel's tree.
//!
//! The program runs in two modes:
//!
//! - rustdoc calls it instead of the compiler, once for each example. It stores the example.
//! - `rust/Makefile` calls it afterwards. It writes a crate with a test case for each example. The
//!   name of a case is made from the example's file. The example that declares a module is the root
//!   of the crate.

use std::{
    env,
    error::Error,
    fs,
    io::Read,
    path::{
        Path,
        PathBuf, //
    }, //
};

type Result<T = ()> = std::result::Result<T, Box<dyn Error>>;

/// An example, as rustdoc completes it.
struct Example {
    /// The file of the example, relative to the top of the source.
    file: String,
    /// The line of that file in which the example begins.
    line: usize,
    body: String,
}

fn main() -> Result {
    let folder = PathBuf::from(env::var("RUST_PERF_EXAMPLES")?);

    match env::var("UNSTABLE_RUSTDOC_TEST_PATH") {
        Ok(file) => keep(&folder, &file),
        Err(_) => {
            print!("{}", crate_of(&read(&folder)?)?);
            Ok(())
        }
    }
}

/// Stores the example that rustdoc passes on standard input.
fn keep(folder: &Path, file: &str) -> Result {
    let top = env::var("RUST_PERF_TOP")?;
    let file = Path::new(file).strip_prefix(top)?.display().to_string();
    let mut body = String::new();
    std::io::stdin().read_to_string(&mut body)?;
    let line = match fence(&body) {
        Some(line) => line + 1,
        // The line is not exact.
        None => env::var("UNSTABLE_RUSTDOC_TEST_LINE")?.parse()?,
    };

    let name = format!("{}:{line:05}", file.replace('/', ":"));
    fs::write(folder.join(name), body)?;
    Ok(())
}

/// The line of the fence before an example, which rustdoc puts into the name of the function that
/// it makes of it: `_doctest_main_FILE_LINE_NUMBER`. [`None`] if the example has a `main()` itself.
fn fence(body: &str) -> Option<usize> {
    function(body)?.rsplit('_').nth(1)?.parse().ok()
}

/// The name of the function that rustdoc makes of an example.
fn function(body: &str) -> Option<&str> {
    let name = body.find("_doctest_main_")?;

    body.get(name..)?.split('(').next()
}

/// The examples, in the order of their files.
fn read(folder: &Path) -> Result<Vec<Example>> {
    let mut examples = Vec::new();

    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let (file, line) = name.rsplit_once(':').ok_or("a file that is not ours")?;
        examples.push(Example {
            file: file.replace(':', "/"),
            line: line.parse()?,
            body: fs::read_to_string(&path)?,
        });
    }
    examples.sort_by(|a, b| (&a.file, a.line).cmp(&(&b.file, b.line)));
    Ok(examples)
}

/// The crate with all examples.
fn crate_of(examples: &[Example]) -> Result<String> {
    let is_root = |example: &&Example| function(&example.body).is_none();
    let mut roots = examples.iter().filter(is_root);
    let (Some(root), None) = (roots.next(), roots.next()) else {
        return Err(
            "exactly one example has to declare a module, and have a `fn main() {}`".into(),
        );
    };

    let mut text = format!(
        "//! The examples in the documentation of `perf`, made by rust/doctests/generate.rs.\n\
         #![allow(missing_docs, unreachable_pub, clippy::all)]\n\
         // {}:{}\n{}\n\
         #[::kernel::prelude::kunit_tests(rust_perf_doctests)]\n\
         mod examples {{\n",
        root.file, root.line, root.body
    );
    let mut before = "";
    let mut number = 0;
    for example in examples.iter().filter(|example| !is_root(example)) {
        number = if example.file == before {
            number + 1
        } else {
            0
        };
        before = &example.file;
        let stem = example.file.trim_start_matches("rust/");
        let name = stem.trim_end_matches(".rs").replace('/', "_");
        push_case(&mut text, &format!("{name}_{number}"), example)?;
    }
    text.push_str("}\n");
    Ok(text)
}

/// The number of lines in a case before its example.
const HEAD: usize = 17;

/// Adds a case whose failed assertions name file and line of the documentation.
fn push_case(text: &mut String, name: &str, example: &Example) -> Result {
    let Example { file, line, body } = example;
    let main = function(body).ok_or("an example without a function")?;
    // As in the kernel's script: the prelude has a `Result` of its own, and a failure must not be
    // a panic.
    let body = body
        .replace(
            &format!("{main}() -> Result<(), impl core::fmt::Debug> {{"),
            &format!("{main}() -> core::result::Result<(), impl core::fmt::Debug> {{"),
        )
        .replace(
            &format!("}} {main}().unwrap() }}"),
            &format!("}} let result = {main}(); assert!(result.is_ok()); }}"),
        );

    // The line of the crate in which the example begins, and its difference to `line`.
    let added = body.lines().take_while(|line| !line.contains(main)).count() + 1;
    let before = text.lines().count();
    let first = before + HEAD + added + 1;
    let off = i64::try_from(first)? - i64::try_from(*line)?;
    text.push_str(&format!(
        r#"// {file}:{line}
#[test]
fn {name}() {{
    use ::kernel::prelude::*;
    #[allow(unused_macros)]
    macro_rules! assert {{
        ($condition:expr $(,)?) => {{
            ::kernel::kunit_assert!("{name}", c"{file}", {off}, $condition)
        }};
    }}
    #[allow(unused_macros)]
    macro_rules! assert_eq {{
        ($left:expr, $right:expr $(,)?) => {{
            ::kernel::kunit_assert_eq!("{name}", c"{file}", {off}, $left, $right)
        }};
    }}
    {{
"#
    ));
    assert_eq!(text.lines().count(), before + HEAD);
    text.push_str(&body);
    text.push_str("\n    main();\n    }\n}\n");
    Ok(())
}
