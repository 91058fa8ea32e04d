package profile

import (
	"encoding/json"
	"strings"
	"testing"
)

func render(t *testing.T, syntax, text string, change func(*Data)) (string, error) {
	t.Helper()
	parsed, err := ParseTemplate("file", text, syntax)
	if err != nil {
		t.Fatal(err)
	}
	data := Data{Pod: PodData{Name: "cart-1", Labels: map[string]string{"app": "cart"}, Annotations: map[string]string{}}, Network: NetworkData{InboundPort: 15006}, Epoch: 3}
	if change != nil {
		change(&data)
	}
	return parsed.execute(data)
}

func TestParseTemplate_printedValues_areQuoted(t *testing.T) {
	for name, c := range map[string]struct{ template, want string }{
		"a field":                   {`name {{ .Pod.Name }}`, `name 'cart-1'`},
		"a number":                  {`bind :{{ .Network.InboundPort }}`, `bind :15006`},
		"a variable":                {`{{ $x := .Pod.Name }}{{ $x }}`, `'cart-1'`},
		"a variable that is set":    {`{{ $x := "" }}{{ $x = .Pod.Name }}{{ $x }}`, `'cart-1'`},
		"an element":                {`{{ index .Pod.Labels "app" }}`, `'cart'`},
		"no such element":           {`{{ index .Pod.Labels "none" }}`, `''`},
		"in a condition":            {`{{ if .Pod.Name }}{{ .Pod.Name }}{{ else }}{{ .Pod.UID }}{{ end }}`, `'cart-1'`},
		"in the other branch":       {`{{ if .Pod.UID }}x{{ else }}{{ .Pod.Name }}{{ end }}`, `'cart-1'`},
		"in a loop":                 {`{{ range $k, $v := .Pod.Labels }}{{ $k }}={{ $v }}{{ end }}`, `'app'='cart'`},
		"of an empty loop":          {`{{ range .Pod.Annotations }}x{{ else }}{{ .Pod.Name }}{{ end }}`, `'cart-1'`},
		"with a dot":                {`{{ with .Pod.Name }}{{ . }}{{ end }}`, `'cart-1'`},
		"in a template of its own":  {`{{ define "x" }}{{ .Pod.Name }}{{ end }}{{ template "x" . }}`, `'cart-1'`},
		"in a block":                {`{{ block "x" .Pod }}{{ .Name }}{{ end }}`, `'cart-1'`},
		"put together":              {`{{ printf "%s.%d" .Pod.Name .Epoch }}`, `'cart-1.3'`},
		"the author's own text":     {`server x %[path] -f y # "'`, `server x %[path] -f y # "'`},
		"the author's own function": {`{{ print "a" "b" }}`, `'ab'`},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := render(t, syntaxHAProxy, c.template, nil); err != nil || got != c.want {
				t.Errorf("got %s, error %v", got, err)
			}
		})
	}
}

// What a tenant writes into a label or an annotation stays one value, or the file is refused.
func TestRender_hostileAnnotations_stayOneValue(t *testing.T) {
	for name, c := range map[string]struct {
		value string
		want  map[string]string // by syntax; none: refused
	}{
		"a word":            {`cart-1.example`, map[string]string{syntaxHAProxy: `'cart-1.example'`, syntaxJSON: `"cart-1.example"`, syntaxPlain: `cart-1.example`}},
		"nothing":           {``, map[string]string{syntaxHAProxy: `''`, syntaxJSON: `""`, syntaxPlain: ``}},
		"two words":         {`a b`, map[string]string{syntaxHAProxy: `'a b'`, syntaxJSON: `"a b"`}},
		"a new line":        {"a\n  user root", nil},
		"a carriage return": {"a\rb", nil},
		"a zero byte":       {"a\x00b", nil},
		"an escape":         {"a\x1b[0m", nil},
		"a next line":       {"a\u0085b", nil},
		"quotes":            {`a' user root '`, map[string]string{syntaxHAProxy: `'a'\'' user root '\'''`, syntaxJSON: `"a' user root '"`}},
		"double quotes":     {`a" , "b": "c`, map[string]string{syntaxHAProxy: `'a" , "b": "c'`, syntaxJSON: `"a\" , \"b\": \"c"`}},
		"a backslash":       {`a\`, map[string]string{syntaxHAProxy: `'a\'`, syntaxJSON: `"a\\"`}},
		"a comment":         {`a # b`, map[string]string{syntaxHAProxy: `'a # b'`, syntaxJSON: `"a # b"`}},
		"a variable":        {`${SECRET}`, map[string]string{syntaxHAProxy: `'${SECRET}'`, syntaxJSON: `"${SECRET}"`}},
		"a format":          {`%[env(SECRET)]`, map[string]string{syntaxJSON: `"%[env(SECRET)]"`}},
		"an option":         {`-f`, map[string]string{syntaxJSON: `"-f"`}},
		"a template":        {`{{ .Pod.UID }}`, map[string]string{syntaxHAProxy: `'{{ .Pod.UID }}'`, syntaxJSON: `"{{ .Pod.UID }}"`}},
		"yaml":              {`: {a: !!b *c`, map[string]string{syntaxHAProxy: `': {a: !!b *c'`, syntaxJSON: `": {a: !!b *c"`}},
		"not UTF-8":         {"a\xff", nil},
		"a long value":      {strings.Repeat("a", 1025), nil},
	} {
		for _, syntax := range []string{syntaxHAProxy, syntaxJSON, syntaxYAML, syntaxPlain} {
			want, accepted := c.want[syntax]
			if syntax == syntaxYAML {
				want, accepted = c.want[syntaxJSON]
			}
			got, err := render(t, syntax, `{{ index .Pod.Annotations "a" }}`, func(d *Data) { d.Pod.Annotations["a"] = c.value })
			if accepted && (err != nil || got != want) || !accepted && err == nil {
				t.Errorf("%s, %s: got %s, error %v", name, syntax, got, err)
			}
		}
	}
}

func TestCompile_badTemplates_areRefused(t *testing.T) {
	for name, c := range map[string]struct{ text, syntax, says string }{
		"no end":     {`{{ if .Pod }}`, syntaxPlain, `file "file": template: file:1`},
		"a syntax":   {`x`, "toml", `syntax "toml"`},
		"a function": {`{{ env "X" }}`, syntaxPlain, `"env" not defined`},
	} {
		if _, err := ParseTemplate("file", c.text, c.syntax); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, c := range map[string]struct{ text, says string }{
		"a field":  {`{{ .Pod.Secret }}`, "can't evaluate field Secret"},
		"a map":    {`{{ .Pod.Labels }}`, "cannot be printed"},
		"too much": {`{{ define "x" }}{{ range $i := 1024 }}` + strings.Repeat("x", 2048) + `{{ end }}{{ end }}{{ template "x" }}`, "larger than 1 MiB"},
	} {
		if _, err := render(t, syntaxPlain, c.text, nil); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzAValueStaysOneValue(f *testing.F) {
	f.Add(`a"b`)
	f.Add("it's")
	f.Fuzz(func(t *testing.T, value string) {
		quote, err := quoter(syntaxJSON)
		if err != nil {
			t.Fatal(err)
		}
		text, err := quote(value)
		if err != nil {
			return
		}
		var back string
		if err := json.Unmarshal([]byte(text), &back); err != nil || back != value {
			t.Errorf("%q became %s, which is %q: %v", value, text, back, err)
		}
	})
}
