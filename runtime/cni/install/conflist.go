package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"

	"github.com/containernetworking/cni/libcni"
)

// conflist is a network configuration list as text, with the positions of its plugins. It is edited as text and never encoded again: so
// every foreign byte stays, and removing our entry gives the original text.
type conflist struct {
	data     []byte
	name     string
	versions []string
	start    int // offset behind the bracket that opens the plugins
	plugins  []element
}

// element is one plugin's configuration: data[start:end].
type element struct {
	start, end int
	kind       string
}

// errPluginsInDirectory means that a list's plugins are in a directory next to it (CNI 1.3's other way to chain).
var errPluginsInDirectory = errors.New("no plugins in the list itself")

// parseList parses a list. libcni, with which runtimes load lists, decides whether it is valid.
func parseList(data []byte) (conflist, error) {
	known, err := libcni.NetworkConfFromBytes(data)
	if err != nil {
		return conflist{}, err
	}
	if known.Name == "" {
		return conflist{}, errors.New("no name")
	}
	l := conflist{data: data, name: known.Name}
	var array []byte
	err = walk(data, func(key string, value json.RawMessage, start int) error { // of equal keys the last one counts, as for a runtime
		switch key {
		case "cniVersion":
			l.versions = append(l.versions, "")
			return json.Unmarshal(value, &l.versions[len(l.versions)-1])
		case "cniVersions":
			var more []string
			err := json.Unmarshal(value, &more)
			l.versions = append(l.versions, more...)
			return err
		case "plugins":
			array, l.start = value, start+1
		}
		return nil
	})
	if err == nil && array == nil {
		return l, errPluginsInDirectory
	}
	if err == nil {
		err = walk(array, func(_ string, value json.RawMessage, start int) error {
			var p struct {
				Type string `json:"type"`
			}
			err := json.Unmarshal(value, &p)
			start += l.start - 1
			l.plugins = append(l.plugins, element{start: start, end: start + len(value), kind: p.Type})
			return err
		})
	}
	return l, err
}

// walk calls visit for each value of a valid JSON object or array, with its offset, and with its key if it has one.
func walk(data []byte, visit func(key string, value json.RawMessage, start int) error) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	opening, err := dec.Token()
	for err == nil && dec.More() {
		var key json.Token
		if opening == json.Delim('{') {
			key, err = dec.Token()
		}
		var value json.RawMessage
		if err = errors.Join(err, dec.Decode(&value)); err != nil {
			return err
		}
		name, _ := key.(string) // an object's keys are strings
		err = visit(name, value, int(dec.InputOffset())-len(value))
	}
	return err
}

// withEntry returns the list's text with exactly one plugin of the entry's type, equal to the entry. A new entry is added at the end, with
// the same space as between the others. An existing entry keeps its place, since foreign plugins may be chained behind it.
func (l *conflist) withEntry(e entry) []byte {
	ours := l.indicesOf(e.kind)
	if len(ours) == 0 {
		last := len(l.plugins) - 1
		gap := "," + string(l.data[l.start:l.plugins[0].start])
		if last > 0 {
			gap = string(l.data[l.plugins[last-1].end:l.plugins[last].start])
		}
		return splice(l.data, l.plugins[last].end, l.plugins[last].end, gap+string(e.text))
	}
	data, first := l.removeAt(ours[1:]), l.plugins[ours[0]]
	if !equal(l.data[first.start:first.end], e.text) {
		data = splice(data, first.start, first.end, string(e.text))
	}
	return data
}

// withoutType returns the list's text without plugins of a type.
func (l *conflist) withoutType(kind string) []byte { return l.removeAt(l.indicesOf(kind)) }

// indicesOf returns the indices of the plugins of a type.
func (l *conflist) indicesOf(kind string) []int {
	var indices []int
	for i, p := range l.plugins {
		if p.kind == kind {
			indices = append(indices, i)
		}
	}
	return indices
}

// removeAt removes the plugins at some indices, each with the comma and space that separate it.
func (l *conflist) removeAt(indices []int) []byte {
	data := l.data
	for _, p := range slices.Backward(indices) {
		start, end := l.plugins[p].start, l.plugins[p].end
		switch {
		case p > 0:
			start = l.plugins[p-1].end
		case len(l.plugins) > len(indices):
			next := slices.IndexFunc(l.plugins, func(e element) bool { return e.kind != l.plugins[p].kind })
			end += l.plugins[next].start - l.plugins[next-1].end // those between are removed already
		}
		data = splice(data, start, end, "")
	}
	return data
}

// supportedBy reports whether the plugin supports every version of the list. A list without a version is of the oldest, unsupported one.
func (l *conflist) supportedBy(versions []string) bool {
	return len(l.versions) > 0 && !slices.ContainsFunc(l.versions, func(v string) bool { return !slices.Contains(versions, v) })
}

// equal reports whether two JSON texts mean the same: a project that rewrites the list may format our entry differently.
func equal(a, b []byte) bool {
	var x, y any
	return json.Unmarshal(a, &x) == nil && json.Unmarshal(b, &y) == nil && reflect.DeepEqual(x, y)
}

func splice(data []byte, start, end int, text string) []byte {
	return slices.Concat(data[:start], []byte(text), data[end:])
}
