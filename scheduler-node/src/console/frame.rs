//! The frame of every page: the head, the navigation, and the headers that restrict what a page may load.

use askama::Template;
use axum::{
    http::{HeaderName, HeaderValue, StatusCode, header},
    response::{Html, IntoResponse, Response},
};
use common::{access::Permission, wire::Problem};

use super::{assets, browser::Theme, visitor::Visitor};

/// The places in the navigation of every page; `g` and the letter lead there too.
pub(super) const NAVIGATION: &[NavigationEntry] = &[
    NavigationEntry { letter: 'o', name: "Overview", path: "/console", needs: Permission::Look },
    NavigationEntry { letter: 't', name: "Tasks", path: "/console/tasks", needs: Permission::Look },
    NavigationEntry { letter: 'd', name: "Dead letters", path: "/console/dead", needs: Permission::Look },
    NavigationEntry { letter: 'b', name: "Bulk", path: "/console/bulk", needs: Permission::Look },
    NavigationEntry { letter: 'q', name: "Queues", path: "/console/queues", needs: Permission::Look },
    NavigationEntry { letter: 's', name: "Schedules", path: "/console/schedules", needs: Permission::Look },
    NavigationEntry { letter: 'c', name: "Cluster", path: "/console/cluster", needs: Permission::Look },
    NavigationEntry { letter: 'm', name: "Databases", path: "/console/databases", needs: Permission::Look },
    NavigationEntry { letter: 'a', name: "Audit", path: "/console/audit", needs: Permission::Operate },
    NavigationEntry { letter: 'k', name: "Tokens", path: "/console/tokens", needs: Permission::Operate },
];

/// An entry of the navigation.
#[derive(Debug)]
pub(super) struct NavigationEntry {
    pub(super) letter: char,
    pub(super) name: &'static str,
    pub(super) path: &'static str,
    /// The entry is hidden from a visitor without this permission.
    pub(super) needs: Permission,
}

/// Allows nothing but this console's own files and forms: the content of a payload can neither run nor load anything
/// nor look like anything but text.
const POLICY: &str = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self'; connect-src 'self'; \
                      form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// The data of a page's frame.
#[derive(Debug)]
pub(super) struct Frame {
    pub(super) title: String,
    pub(super) visitor: Option<Visitor>,
    pub(super) theme: Theme,
}

impl Frame {
    pub(super) fn new(title: impl Into<String>, visitor: &Visitor) -> Self {
        Self { title: title.into(), theme: visitor.theme, visitor: Some(visitor.clone()) }
    }

    /// The frame for a visitor without a session.
    pub(super) fn outside(title: impl Into<String>, theme: Theme) -> Self {
        Self { title: title.into(), visitor: None, theme }
    }

    pub(super) fn style(&self) -> String {
        assets::STYLE.url()
    }

    pub(super) fn script(&self) -> String {
        assets::SCRIPT.url()
    }

    pub(super) fn icon(&self) -> String {
        assets::ICON.url()
    }

    pub(super) fn version(&self) -> &'static str {
        env!("CARGO_PKG_VERSION")
    }

    /// Whether the page is at that place or below it.
    pub(super) fn is_at(&self, place: &NavigationEntry) -> bool {
        let path = self.visitor.as_ref().map_or("", |visitor| visitor.here.split('?').next().unwrap_or_default());
        path == place.path || (place.path != "/console" && path.starts_with(&format!("{}/", place.path)))
    }

    /// The queues that the visitor may see, in words.
    pub(super) fn caller_queues(&self) -> String {
        self.visitor.as_ref().map(|visitor| visitor.caller.queues.to_string()).unwrap_or_default()
    }

    /// The token that every form carries.
    pub(super) fn form_token(&self) -> &str {
        self.visitor.as_ref().map_or("", |visitor| &visitor.form_token)
    }
}

/// Renders a page as an answer.
pub(super) fn show(status: StatusCode, page: &impl Template) -> Response {
    match page.render() {
        Ok(html) => with_headers((status, Html(html)).into_response()),
        Err(error) => {
            tracing::error!(error = &error as &dyn std::error::Error, "a page cannot be rendered");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

fn with_headers(mut response: Response) -> Response {
    let headers = [
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "same-origin"),
        (header::CACHE_CONTROL, "no-store"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    ];
    for (name, value) in headers {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

/// Names the seconds after which the client may try again, if the problem does.
pub(super) fn with_retry_after(mut response: Response, retry_after_s: Option<u32>) -> Response {
    if let Some(seconds) = retry_after_s {
        response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
    }
    response
}

#[derive(Template)]
#[template(path = "trouble.html")]
struct ProblemPage {
    frame: Frame,
    problem: Problem,
}

/// A problem, as a page. The `Err` of every handler.
#[derive(Debug)]
pub(super) struct PageProblem {
    // Boxed to keep every handler's `Result` small.
    inner: Box<(Frame, Problem)>,
}

impl PageProblem {
    pub(super) fn at(visitor: &Visitor, problem: Problem) -> Self {
        Self::outside(Frame::new(problem.title.to_string(), visitor), problem)
    }

    pub(super) fn outside(frame: Frame, problem: Problem) -> Self {
        Self { inner: Box::new((frame, problem)) }
    }
}

impl IntoResponse for PageProblem {
    fn into_response(self) -> Response {
        let (frame, problem) = *self.inner;
        let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let retry_after_s = problem.retry_after_s;
        with_retry_after(show(status, &ProblemPage { frame, problem }), retry_after_s)
    }
}
