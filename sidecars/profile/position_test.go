package profile

import (
	"strings"
	"testing"

	"istio-pod-network-controller/api/v1alpha1"
)

// In each file a value of the pod is printed where its own quotes count for nothing.
func TestCompile_valueInsideQuotes_isRefusedWithItsLine(t *testing.T) {
	const value = `{{ index .Pod.Annotations "a" }}`
	for name, c := range map[string]struct{ syntax, text, says string }{
		"double quotes":                {syntaxHAProxy, "frontend in\n  http-request set-header X-Team \"team " + value + "\"\n", `file:2:`},
		"single quotes":                {syntaxHAProxy, "log-format '" + value + "'", "inside quotes (')"},
		"quotes in the middle":         {syntaxHAProxy, `x a"b` + value + `"`, `inside quotes (")`},
		"an escaped quote within":      {syntaxHAProxy, `x "a\"` + value + `"`, `inside quotes (")`},
		"after a backslash":            {syntaxHAProxy, `x a\` + value, "behind a backslash"},
		"opened in a condition":        {syntaxHAProxy, `x {{ if .Pod.Name }}"{{ end }}` + value, "one of its ways only"},
		"in a branch":                  {syntaxHAProxy, `x "{{ if .Pod.Name }}` + value + `{{ end }}"`, `inside quotes (")`},
		"in a loop's second turn":      {syntaxHAProxy, `x {{ range .Pod.Labels }}` + value + `\{{ end }}`, "behind a backslash"},
		"left open by a break":         {syntaxHAProxy, `x {{ range .Pod.Labels }}"{{ break }}"{{ end }}` + value, `inside quotes (")`},
		"a template in quotes":         {syntaxHAProxy, `{{ define "t" }}` + value + `{{ end }}x "{{ template "t" . }}"`, `inside quotes (")`},
		"a template that opens quotes": {syntaxHAProxy, `{{ define "t" }}"{{ end }}{{ template "t" . }}` + value, `inside quotes (")`},
		"a constant":                   {syntaxHAProxy, `x "{{ "a" }}"`, `inside quotes (")`},
		"a label of a number's name":   {syntaxHAProxy, `{{ with .Pod.Labels }}"{{ .epoch }}"{{ end }}`, `inside quotes (")`},
		"JSON":                         {syntaxJSON, "{\n\"a\": \"team " + value + "\"}", `file:2:`},
		"JSON, an escaped quote":       {syntaxJSON, `{"a": "b\" ` + value + `"}`, `inside quotes (")`},
		"YAML":                         {syntaxYAML, `a: "b ` + value + `"`, `inside quotes (")`},
		"YAML, single quotes":          {syntaxYAML, `a: 'it''s ` + value + `'`, "inside quotes (')"},
		"YAML, lines later":            {syntaxYAML, "a: \"b\n  " + value + "\"", `inside quotes (")`},
		"YAML, behind a stray quote":   {syntaxYAML, "a: |\n  say \"\nb: \"c " + value + "\"", `inside quotes (")`},
		"YAML, in a word":              {syntaxYAML, `a: b` + value, "in the middle of a value"},
		"YAML, after a colon":          {syntaxYAML, `a:` + value, "in the middle of a value"},
	} {
		_, err := New("edge", Spec{Files: []v1alpha1.File{{Name: "file", Template: c.text, Syntax: c.syntax}}})
		if err == nil || !strings.Contains(err.Error(), c.says) || !strings.Contains(err.Error(), `"file"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCompile_valueOutsideQuotes_isPrinted(t *testing.T) {
	const value = `{{ .Pod.Name }}`
	for name, c := range map[string]struct{ syntax, in, want string }{
		"quotes that are closed":     {syntaxHAProxy, `x "a" 'b' ` + value, `x "a" 'b' 'cart-1'`},
		"quotes of another line":     {syntaxHAProxy, "# it's\nx \\\" " + value, "# it's\nx \\\" 'cart-1'"},
		"a comment":                  {syntaxHAProxy, `# "` + value, `# "'cart-1'`},
		"an expression of its own":   {syntaxHAProxy, `acl x hdr(host) -m str ` + value, `acl x hdr(host) -m str 'cart-1'`},
		"an expression's brackets":   {syntaxHAProxy, `x str("a b="` + value + `/` + value + `)`, `x str("a b="cart-1/cart-1)`},
		"a word with more":           {syntaxHAProxy, `server s ` + value + `:80`, `server s 'cart-1':80`},
		"quotes in both ways":        {syntaxHAProxy, `x {{ if .Pod.UID }}"a"{{ else }}'b'{{ end }} ` + value, `x 'b' 'cart-1'`},
		"a number in quotes":         {syntaxHAProxy, `x "port {{ .Network.InboundPort }}"`, `x "port 15006"`},
		"a number in a loop":         {syntaxYAML, `{{ range .Pod.Labels }}"{{ $.Epoch }}"{{ end }}`, `"3"`},
		"JSON":                       {syntaxJSON, `{"a":` + value + `,"it's":[` + value + `]}`, `{"a":"cart-1","it's":["cart-1"]}`},
		"YAML":                       {syntaxYAML, "# it's \"\na: " + value + " # 'b\n- don't: " + value, "# it's \"\na: \"cart-1\" # 'b\n- don't: \"cart-1\""},
		"YAML that is JSON":          {syntaxYAML, `{"a":` + value + `,"b":[` + value + `,` + value + `]}`, `{"a":"cart-1","b":["cart-1","cart-1"]}`},
		"YAML, quotes that are over": {syntaxYAML, `a: ['it''s', "\"", ` + value + `]`, `a: ['it''s', "\"", "cart-1"]`},
		"plain":                      {syntaxPlain, `a="` + value + `"`, `a="cart-1"`},
	} {
		if got, err := render(t, c.syntax, c.in, nil); err != nil || got != c.want {
			t.Errorf("%s: got %s, error %v", name, got, err)
		}
	}
	_, err := render(t, syntaxHAProxy, `x %[str("a b="{{ .Pod.Name }})]`, func(d *Data) { d.Pod.Name = `a),env(SECRET` })
	if err == nil || !strings.Contains(err.Error(), "brackets") {
		t.Errorf("an expression that ends early: %v", err)
	}
	_, err = render(t, syntaxHAProxy, `{{ with .Pod.Labels }}"{{ .Epoch }}"{{ end }}`, func(d *Data) { d.Pod.Labels["Epoch"] = `a" b` })
	if err == nil || !strings.Contains(err.Error(), "it would leave them") {
		t.Errorf("a label with the name of a number: %v", err)
	}
}
