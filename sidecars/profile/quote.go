package profile

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxValueBytes bounds one quoted value: HAProxy's lines hold 2 KiB, and nobody's name is longer.
const maxValueBytes = 1024

// Syntaxes of a profile's files. In all of them numbers and truth values are printed as they are.
const (
	syntaxHAProxy = "haproxy"
	syntaxJSON    = "json"
	syntaxYAML    = "yaml"
	syntaxPlain   = "plain"
)

// quoter returns a function that makes a value safe for a syntax. Whoever may label or annotate a pod has written it: it must stay one
// value, whatever it contains.
func quoter(syntax string) (func(value any) (string, error), error) {
	var quote func(string) (string, error)
	switch syntax {
	case syntaxHAProxy:
		quote = quoteHAProxy
	case syntaxJSON, syntaxYAML:
		quote = quoteJSON
	case syntaxPlain, "":
		quote = quotePlain
	default:
		return nil, fmt.Errorf("syntax %q: want haproxy, json, yaml or plain", syntax)
	}
	return quotedBy(quote), nil
}

func quotedBy(quote func(string) (string, error)) func(value any) (string, error) {
	return func(value any) (string, error) {
		text, bare, err := scalar(value)
		if err != nil || bare {
			return text, err
		}
		return quote(text)
	}
}

// scalar returns a value as text; bare is true for numbers and truth values, which need no quotes.
func scalar(value any) (text string, bare bool, err error) {
	v := reflect.ValueOf(value)
	for v.IsValid() && (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) {
		v = v.Elem()
	}
	switch {
	case !v.IsValid():
		return "", false, nil
	case v.CanInt() || v.CanUint() || v.Kind() == reflect.Bool:
		return fmt.Sprint(v.Interface()), true, nil
	case v.Kind() == reflect.String:
		return v.String(), false, acceptable(v.String())
	}
	return "", false, fmt.Errorf("a value of type %s cannot be printed: name one of its fields or elements", v.Type())
}

// acceptable returns an error for text that no syntax here can carry, or whose meaning depends on who reads it.
func acceptable(text string) error {
	switch {
	case len(text) > maxValueBytes:
		return fmt.Errorf("value %.40q... has %d bytes: at most %d", text, len(text), maxValueBytes)
	case !utf8.ValidString(text):
		return fmt.Errorf("value %q is not UTF-8", text)
	case strings.ContainsFunc(text, unicode.IsControl):
		return fmt.Errorf("value %q has control characters", text)
	}
	return nil
}

// quoteHAProxy returns one word of a line. In strong quotes nothing is special (HAProxy configuration manual, 2.2). A leading dash and a
// percent sign are refused all the same: some keywords take them for an option or a format.
func quoteHAProxy(text string) (string, error) {
	if strings.HasPrefix(text, "-") || strings.Contains(text, "%") {
		return "", fmt.Errorf("value %q: haproxy may take a leading - for an option and %% for a format", text)
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'", nil
}

// quotePlain accepts only text that is one harmless word everywhere.
func quotePlain(text string) (string, error) {
	for _, r := range text {
		if r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("._:/@=+-", r) {
			return "", fmt.Errorf("value %q: a plain file, or an expression's brackets, takes letters, digits and ._:/@=+- only", text)
		}
	}
	if strings.HasPrefix(text, "-") {
		return "", fmt.Errorf("value %q: begins with -, which may be taken for an option", text)
	}
	return text, nil
}

// quoteJSON returns a JSON string, which is a YAML string as well.
func quoteJSON(text string) (string, error) {
	var out strings.Builder
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	if err := e.Encode(text); err != nil {
		return "", fmt.Errorf("print as JSON: %w", err)
	}
	return strings.TrimSuffix(out.String(), "\n"), nil
}
