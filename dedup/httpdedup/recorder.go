package httpdedup

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// recorder is the ResponseWriter of the handler. It keeps the answer back.
type recorder struct {
	header http.Header // the handler's
	sent   http.Header // as it was at the first WriteHeader; nil before
	status int
	body   bytes.Buffer
	below  http.ResponseWriter
}

// newRecorder starts with the headers that are set already, as the handler would see
// them.
func newRecorder(w http.ResponseWriter) *recorder {
	return &recorder{header: w.Header().Clone(), below: w}
}

// Header implements http.ResponseWriter.
func (w *recorder) Header() http.Header {
	if w.header == nil {
		w.header = make(http.Header)
	}
	return w.header
}

// WriteHeader implements http.ResponseWriter. Informational responses are not kept.
func (w *recorder) WriteHeader(status int) {
	if status < 100 || status > 999 { // as net/http does
		panic(fmt.Sprintf("httpdedup: invalid WriteHeader code %v", status))
	}
	if w.sent == nil && status >= http.StatusOK {
		w.status, w.sent = status, w.Header().Clone()
	}
}

// Write implements http.ResponseWriter.
func (w *recorder) Write(p []byte) (int, error) {
	if w.sent == nil {
		w.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(w.status) {
		return 0, http.ErrBodyNotAllowed
	}
	return w.body.Write(p)
}

// Flush implements http.Flusher, for handlers that insist on it. Nothing may be sent
// before it is stored.
func (w *recorder) Flush() {
	if w.sent == nil {
		w.WriteHeader(http.StatusOK)
	}
}

// SetReadDeadline is for http.ResponseController.
func (w *recorder) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(w.below).SetReadDeadline(t)
}

// SetWriteDeadline is for http.ResponseController. A handler that takes longer than
// the server's WriteTimeout needs it.
func (w *recorder) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(w.below).SetWriteDeadline(t)
}

// answer is what the handler has answered, once it has returned.
func (w *recorder) answer() *Answer {
	if w.sent == nil {
		w.WriteHeader(http.StatusOK)
	}
	h := w.sent
	// net/http looks at the first bytes when nobody has said what they are. It is done
	// here, so that duplicates get the same from another build.
	_, typed := h["Content-Type"]
	if body := w.body.Bytes(); !typed && len(body) > 0 && h.Get("Content-Encoding") == "" {
		h.Set("Content-Type", http.DetectContentType(body))
	}
	// Trailers come after the body, and a body with a length has none.
	h.Del("Trailer")
	h.Del("Transfer-Encoding")
	for name := range h {
		if strings.HasPrefix(name, http.TrailerPrefix) || !validToken(name) {
			delete(h, name)
		}
	}
	return &Answer{Status: w.status, Header: h, Body: w.body.Bytes()}
}
