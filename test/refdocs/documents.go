package main

import (
	"errors"
	"fmt"
	"go/ast"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// document is what a command prints with -o json: a struct of the code.
type document struct{ command, dir, name, text string }

func documents() []document {
	return []document{
		{"status", "diagnostics/survey", "Report", "What the states mean: [commands.md](../commands.md#status)."},
		{"check", "diagnostics/commands", "checked", "Each check: [check.md](../check.md)."},
		{"inspect", "diagnostics/inspect", "Document", "One pod: [inspect.md](../inspect.md)."},
		{"explain", "diagnostics/commands", "explanations", "[explain.md](../explain.md)."},
		{"connectivity test", "diagnostics/connectivity", "Line", "The document has `ok`, which is true if everything is proven, and the list `proofs`. Each of these has:"},
		{"rules show", "iptables", "View", "On a node only, without `-o yaml`."},
	}
}

// member is one field of a document, by its path from the document's root.
type member struct{ path, kind, meaning string }

// documentsPage lists the fields of every document. Their comments are the texts.
func documentsPage(s *source) (string, error) {
	p := newPage("Output for machines", "the types of the commands' documents")
	p.text("What commands print with `-o json`, and with `-o yaml` where they have it. The commands that ask a cluster are `kubectl pod-network ...`. In a field, `[]` is a list.",
		"The documents have no version of their own: names and meanings of fields are stable as [support-policy.md](../support-policy.md#what-is-stable) says. "+
			"Fields, and values of a field, may be added: ignore what you do not know. Texts in messages may change. An optional field is missing where it would be empty.")
	var errs []error
	for _, d := range documents() {
		members, err := s.members(d.dir, d.name, "")
		errs = append(errs, err)
		p.section("`" + d.command + "`")
		p.text(d.text)
		var rows [][]string
		for _, m := range members {
			rows = append(rows, []string{code(m.path), m.kind, m.meaning})
		}
		p.table([]string{"Field", "Is", "Meaning"}, rows)
	}
	return p.String(), errors.Join(errs...)
}

// members returns the fields of a struct and of those in it.
func (s *source) members(dir, name, path string) (all []member, err error) {
	declared, file := s.declared(dir, name)
	structure, ok := typeOf(declared).(*ast.StructType)
	if !ok {
		return nil, fmt.Errorf("%s has no struct %s", dir, name)
	}
	texts := commentsOf(structure)
	for i, field := range structure.Fields.List {
		if embedded, ok := field.Type.(*ast.Ident); ok && len(field.Names) == 0 { // its fields are the struct's
			below, err := s.members(dir, embedded.Name, path)
			if err != nil {
				return nil, err
			}
			all = append(all, below...)
		}
		key, optional := jsonName(field)
		if key == "" {
			continue
		}
		m, in, of := s.memberOf(dir, file, field.Type)
		m.path, m.meaning = path+key+m.path, joined(texts[i], m.meaning)
		if optional {
			m.kind += ", optional"
		}
		all = append(all, m)
		if of != "" {
			below, err := s.members(in, of, m.path+".")
			if err != nil {
				return nil, err
			}
			all = append(all, below...)
		}
	}
	return all, nil
}

// joined returns a field's text and its values, or without both the text of its type.
func joined(text, ofType string) string {
	if text == "" || strings.HasPrefix(ofType, "`") {
		return strings.TrimPrefix(text+". "+ofType, ". ")
	}
	return text
}

// memberOf says what a field is, and which struct of ours it has.
func (s *source) memberOf(dir string, file *ast.File, e ast.Expr) (m member, in, of string) {
	switch e := e.(type) {
	case *ast.StarExpr:
		return s.memberOf(dir, file, e.X)
	case *ast.ArrayType:
		m, in, of = s.memberOf(dir, file, e.Elt)
		m.path, m.kind = "[]"+m.path, "list"
		return m, in, of
	case *ast.SelectorExpr:
		if name := e.X.(*ast.Ident).Name + "." + e.Sel.Name; name == "time.Time" {
			return member{kind: "time, RFC 3339"}, "", ""
		}
		return s.named(imported(file, e.X.(*ast.Ident).Name), e.Sel.Name)
	case *ast.Ident:
		kinds := map[string]string{"string": "text", "bool": "true or false", "int": "number", "uint16": "number", "int32": "number", "uint64": "number"}
		if kind := kinds[e.Name]; kind != "" {
			return member{kind: kind}, "", ""
		}
		return s.named(dir, e.Name)
	}
	return member{kind: "object"}, "", ""
}

// named is a field of a type of ours: a struct, or a text with known values.
func (s *source) named(dir, name string) (m member, in, of string) {
	declared, _ := s.declared(dir, name)
	if _, ok := typeOf(declared).(*ast.StructType); ok {
		first, _, _ := strings.Cut(strings.TrimSuffix(oneLine(declared.Doc.Text()), "."), ". ")
		return member{kind: "object", meaning: ofSubject.ReplaceAllString(first, "")}, dir, name
	}
	var values []string
	for _, c := range s.pkg(dir).constants {
		if value, ok := s.text(s.pkg(dir), c.value); ok && c.of == name {
			values = append(values, code(value))
		}
	}
	return member{kind: "text", meaning: strings.Join(values, ", ")}, "", ""
}

// declared returns a type's declaration, with its comment, and the file that it is in.
func (s *source) declared(dir, name string) (*ast.TypeSpec, *ast.File) {
	p := s.pkg(dir)
	if p == nil {
		return nil, nil
	}
	for _, file := range p.files {
		for _, decl := range file.Decls {
			group, ok := decl.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range group.Specs {
				if t, ok := spec.(*ast.TypeSpec); ok && t.Name.Name == name {
					t.Doc = group.Doc
					return t, file
				}
			}
		}
	}
	return nil, nil
}

func typeOf(t *ast.TypeSpec) ast.Expr {
	if t == nil {
		return nil
	}
	return t.Type
}

// imported returns the directory of a package of ours that a file calls so.
func imported(file *ast.File, name string) string {
	for _, i := range file.Imports {
		dir, ours := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), "istio-pod-network-controller/")
		if ours && strings.HasSuffix("/"+dir, "/"+name) {
			return dir
		}
	}
	return ""
}

// jsonName returns a field's name in the document, and whether it may be missing.
func jsonName(field *ast.Field) (name string, optional bool) {
	if field.Tag == nil {
		return "", false
	}
	parts := strings.Split(reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json"), ",")
	return strings.TrimPrefix(parts[0], "-"), len(parts) > 1
}

// commentsOf returns the text of each field. A comment may be about fields behind its own, too: a sentence is about the fields that it begins with.
func commentsOf(structure *ast.StructType) []string {
	names, keys := []string{}, []string{}
	for _, field := range structure.Fields.List {
		key, name := "", ""
		if len(field.Names) > 0 {
			key, _ = jsonName(field)
			name = field.Names[0].Name
		}
		names, keys = append(names, name), append(keys, "`"+key+"`")
	}
	anyName := strings.Join(slices.DeleteFunc(slices.Clone(names), func(name string) bool { return name == "" }), "|")
	subject := regexp.MustCompile(`^(?:(?:` + anyName + `)(?:, | and )?)+ `)
	texts, last := make([]string, len(names)), 0
	for i, field := range structure.Fields.List {
		comment := oneLine(field.Doc.Text() + " " + field.Comment.Text())
		if comment != "" {
			last = i
		} else {
			comment = oneLine(structure.Fields.List[last].Doc.Text())
		}
		var about []string
		for sentence := range strings.SplitSeq(strings.TrimSuffix(comment, "."), ". ") {
			of := regexp.MustCompile(anyName).FindAllString(subject.FindString(sentence+" "), -1)
			if slices.Contains(of, names[i]) || len(of) == 0 && last == i {
				about = append(about, plain(sentence, names, keys, of))
			}
		}
		texts[i] = strings.Join(about, ". ")
	}
	return texts
}

// ofSubject is the beginning of a comment that says what it is about.
var ofSubject = regexp.MustCompile(`^[A-Za-z]\w+ (is|are|says|means that|reports whether|compares) `)

// plain is a sentence without its subject, if that is one field, and with the document's names of fields.
func plain(sentence string, names, keys, of []string) string {
	if len(of) == 1 {
		sentence = ofSubject.ReplaceAllString(sentence, "")
	}
	for i, name := range names {
		sentence = regexp.MustCompile(`\b`+name+`\b`).ReplaceAllString(sentence, keys[i])
	}
	return strings.NewReplacer("; nil if", "; missing if", "nil: ", "missing: ").Replace(sentence)
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }
