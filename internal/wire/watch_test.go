package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
)

const podsPath = "https://api/prefix/api/v1/pods"

// framed returns events as they are sent.
func framed(events ...string) (stream string) {
	for _, e := range events {
		stream += string(binary.BigEndian.AppendUint32(nil, uint32(len(e)))) + e
	}
	return stream
}

// event returns an event with an object of a kind.
func event(kind, object string) string {
	return field(1, "MODIFIED") + field(2, field(1, "k8s\x00"+field(1, field(1, "v1")+field(2, kind))+field(2, object)+field(3, "")+field(4, "")))
}

type server struct {
	header string
	status int
	body   io.Reader
}

func (s server) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: s.status, Header: http.Header{"Content-Type": {s.header}}, Body: io.NopCloser(s.body)}, nil
}

// read returns what a client reads.
func read(t *testing.T, method, url string, s server) (string, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := TrimWatches(s, "/api/v1/pods", "Pod", Message{1: {}}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	got, err := io.ReadAll(resp.Body)
	return string(got), err
}

func TestEventsAreTrimmed(t *testing.T) {
	full, less := event("Pod", field(1, "a")+field(2, "b")), event("Pod", field(1, "a"))
	long := event("Pod", field(1, "a")+field(2, strings.Repeat("b", maxKept))) // its lengths have three bytes
	bookmark := field(1, "BOOKMARK") + strings.TrimPrefix(full, field(1, "MODIFIED"))
	status := event("Status", field(2, "b"))
	huge := strings.Repeat("x", maxEvent+1)
	for name, c := range map[string]struct{ in, want string }{
		"no event":                     {},
		"one":                          {framed(full), framed(less)},
		"several":                      {framed(full, full, status, full), framed(less, less, status, less)},
		"an error":                     {framed(status), framed(status)},
		"a bookmark":                   {framed(bookmark, full), framed(bookmark, less)},
		"an event without an object":   {framed(field(1, "BOOKMARK")), framed(field(1, "BOOKMARK"))},
		"one that is not protobuf":     {framed("\x80", full), framed("\x80", less)},
		"an object without the prefix": {framed(field(2, field(1, "{}"))), framed(field(2, field(1, "{}")))},
		"one that is too long":         {framed(full, huge, full), framed(less, huge, less)},
	} {
		t.Run(name, func(t *testing.T) {
			for by, body := range map[string]io.Reader{"at once": strings.NewReader(c.in), "byte by byte": iotest.OneByteReader(strings.NewReader(c.in))} {
				got, err := read(t, http.MethodGet, podsPath+"?watch=true", server{watchType, http.StatusOK, body})
				if err != nil || got != c.want {
					t.Errorf("%s: got %d bytes, error %v; want %d bytes", by, len(got), err, len(c.want))
				}
			}
		})
	}
	got, err := read(t, http.MethodGet, podsPath+"?watch=true", server{watchType, http.StatusOK, strings.NewReader(framed(long, full))})
	if err != nil || len(got) > 200 || !bytes.HasSuffix([]byte(got), []byte(framed(less))) {
		t.Errorf("after a long event: %d bytes, error %v", len(got), err)
	}
}

func TestAWatchEndsAsItWouldWithout(t *testing.T) {
	full, less := event("Pod", field(1, "a")+field(2, "b")), event("Pod", field(1, "a"))
	broken := errors.New("broken")
	for name, c := range map[string]struct {
		in, want string
		err      error
	}{
		"between two events": {framed(full), framed(less), broken},
		"within a length":    {framed(full) + "\x00\x00", framed(less), broken},
		"within an event":    {framed(full, full)[:len(framed(full, full))-3], framed(less) + framed(full)[:len(framed(full))-3], broken},
	} {
		got, err := read(t, http.MethodGet, podsPath+"?watch=1", server{watchType, http.StatusOK, io.MultiReader(strings.NewReader(c.in), iotest.ErrReader(c.err))})
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s: got %q, error %v; want %q", name, got, err, c.want)
		}
	}
}

func TestOtherAnswersAreLeftAlone(t *testing.T) {
	body := framed(event("Pod", field(1, "a")+field(2, "b")))
	for name, c := range map[string]struct {
		method, url, kind string
		status            int
	}{
		"a list":         {http.MethodGet, podsPath, watchType, http.StatusOK},
		"one pod":        {http.MethodGet, podsPath + "/x?watch=true", watchType, http.StatusOK},
		"another kind":   {http.MethodGet, "https://api/api/v1/nodes?watch=true", watchType, http.StatusOK},
		"JSON":           {http.MethodGet, podsPath + "?watch=true", "application/json;stream=watch", http.StatusOK},
		"an error":       {http.MethodGet, podsPath + "?watch=true", watchType, http.StatusGone},
		"another method": {http.MethodPost, podsPath + "?watch=true", watchType, http.StatusOK},
	} {
		got, err := read(t, c.method, c.url, server{c.kind, c.status, strings.NewReader(body)})
		if err != nil || got != body {
			t.Errorf("%s: got %q, error %v", name, got, err)
		}
	}
}
