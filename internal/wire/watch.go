package wire

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"k8s.io/apimachinery/pkg/watch"
)

// watchType is the content type of a watch in protobuf.
const watchType = "application/vnd.kubernetes.protobuf;stream=watch"

// Bounds of an event's buffers: longer events are not trimmed, and longer buffers are not kept.
const (
	maxEvent = 4 << 20
	maxKept  = 64 << 10
)

// TrimWatches returns next, except that objects in the watch events of one resource have only the fields that keep names. path is the end of
// the watches' URL path, such as "/api/v1/pods"; kind is the objects' kind, such as "Pod".
func TrimWatches(next http.RoundTripper, path, kind string, keep Message) http.RoundTripper {
	return &transport{next: next, path: path, event: eventOf(kind, keep)}
}

type transport struct {
	next  http.RoundTripper
	path  string
	event Message
}

// RoundTrip makes the request.
func (t *transport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if err != nil || !strings.HasSuffix(req.URL.Path, t.path) || !t.trims(req, resp) {
		return resp, err
	}
	resp.Body = &events{ReadCloser: resp.Body, keep: t.event}
	return resp, nil
}

func (t *transport) trims(req *http.Request, resp *http.Response) bool {
	kind := strings.ReplaceAll(resp.Header.Get("Content-Type"), " ", "")
	return req.Method == http.MethodGet && req.URL.Query().Get("watch") != "" && resp.StatusCode == http.StatusOK && kind == watchType
}

// WrappedRoundTripper returns the RoundTripper below, for client-go.
func (t *transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// eventOf is what is kept of an event (metav1.WatchEvent): its type, and the object in a runtime.RawExtension.
func eventOf(kind string, keep Message) Message {
	return Message{eventType: {}, 2: {Inside: Message{1: {inside: object{kind: kind, keep: keep}}}}}
}

// object is an object as the API server encodes it: a prefix and a runtime.Unknown.
type object struct {
	kind string
	keep Message
}

// prefix starts every object in protobuf.
var prefix = []byte("k8s\x00")

// Fields of metav1.WatchEvent, of runtime.Unknown, and of its runtime.TypeMeta.
const (
	eventType   protowire.Number = 1
	unknownType protowire.Number = 1
	unknownRaw  protowire.Number = 2
	typeKind    protowire.Number = 2
)

// appendKept appends the object without what is not kept. An object of another kind, such as the metav1.Status of an error, is kept as it is.
func (o object) appendKept(dst, value []byte) (kept []byte, ok bool) {
	unknown, ok := bytes.CutPrefix(value, prefix)
	if !ok || string(bytesOf(bytesOf(unknown, unknownType), typeKind)) != o.kind {
		return append(dst, value...), true
	}
	fields := Message{unknownType: {}, unknownRaw: {Inside: o.keep}, 3: {}, 4: {}}
	return fields.appendKept(append(dst, prefix...), unknown)
}

// events reads a watch's events, each of which has its length in front of it, and trims them.
type events struct {
	io.ReadCloser

	keep    Message
	ready   []byte // trimmed, and not read yet
	in, out []byte // buffers
	left    int    // of an event that is too long to be trimmed
}

const lengthSize = 4

// Read returns the next bytes of the trimmed events.
func (e *events) Read(p []byte) (n int, err error) {
	if len(e.ready) == 0 && e.left > 0 {
		n, err = e.ReadCloser.Read(p[:min(len(p), e.left)])
		e.left -= n
		return n, err
	}
	if len(e.ready) == 0 {
		if err := e.next(); err != nil {
			return 0, err
		}
	}
	n = copy(p, e.ready)
	if e.ready = e.ready[n:]; len(e.ready) == 0 && cap(e.in) > maxKept {
		e.in, e.out = nil, nil
	}
	return n, nil
}

// next reads one event and trims it. An event of an unexpected form is passed on as it is. So is a bookmark: the annotations of its object
// are about the watch.
func (e *events) next() error {
	e.in = append(e.in[:0], 0, 0, 0, 0)
	if _, err := io.ReadFull(e.ReadCloser, e.in); err != nil {
		return err
	}
	size := int(binary.BigEndian.Uint32(e.in))
	if size > maxEvent {
		e.ready, e.left = e.in, size
		return nil
	}
	if cap(e.in) < lengthSize+size {
		e.in = append(make([]byte, 0, 2*(lengthSize+size)), e.in...)
	}
	e.in = e.in[:lengthSize+size]
	if n, err := io.ReadFull(e.ReadCloser, e.in[lengthSize:]); err != nil {
		e.ready = e.in[:lengthSize+n]
		return nil //nolint:nilerr // the reader gets as much as there is, and with the next call the same error
	}
	if string(bytesOf(e.in[lengthSize:], eventType)) == string(watch.Bookmark) {
		e.ready = e.in
		return nil
	}
	kept, ok := e.keep.appendKept(append(e.out[:0], e.in[:lengthSize]...), e.in[lengthSize:])
	if e.out = kept; !ok {
		e.ready = e.in
		return nil
	}
	binary.BigEndian.PutUint32(e.out, uint32(len(e.out)-lengthSize))
	e.ready = e.out
	return nil
}
