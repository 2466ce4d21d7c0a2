package experiment

import (
	"encoding"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"

	"github.com/ubcoll/ubcoll/internal/nearest"
)

// decode stores table, from the TOML parser, in the struct v. It reports every key that v does not have and every value
// that does not fit. It walks the table itself because the parser's own decoding stops at the first fault.
func decode(md *toml.MetaData, table map[string]toml.Primitive, v reflect.Value) (Faults, lineTable) {
	d := decoder{md: md, all: leaves(v.Type(), ""), lines: lineTable{}}
	d.table(table, v, nil)
	return d.faults, d.lines
}

type decoder struct {
	md     *toml.MetaData
	faults Faults
	all    []string // every valid key, to hint at the right table
	lines  lineTable
}

// lineTable has the lines of keys, by their paths joined with NUL.
type lineTable map[string]int

// of returns the line of path, or of the innermost table around it that has one, or 0.
func (t lineTable) of(path []string) int {
	for n := len(path); n > 0; n-- {
		if line := t[strings.Join(path[:n], "\x00")]; line > 0 {
			return line
		}
	}
	return 0
}

// value returns p's value and its line. Of the parser (1.6.0) only ParseError has a position: MetaData, Primitive and Key
// have none, and UnmarshalTOML gets none. It makes one of the error of an UnmarshalTOML, so value provokes that, for values
// that are right as well: Validate may find later that they do not fit together.
func (d *decoder) value(p toml.Primitive) (value any, line int) {
	var at toml.ParseError
	if err := d.md.PrimitiveDecode(p, &refusal{&value}); errors.As(err, &at) {
		line = at.Position.Line
	}
	if _, table := value.(map[string]any); table && line == 0 { // a table that only its keys name: a.b = 1
		var keys map[string]toml.Primitive
		if d.md.PrimitiveDecode(p, &keys) == nil {
			for _, k := range keys {
				if _, l := d.value(k); line == 0 || l > 0 && l < line {
					line = l
				}
			}
		}
	}
	return value, line
}

// refusal takes a value and returns an error.
type refusal struct{ value *any }

// UnmarshalTOML keeps v. It implements toml.Unmarshaler.
func (r *refusal) UnmarshalTOML(v any) error {
	*r.value = v
	return errRefused
}

var errRefused = errors.New("refused")

func (d *decoder) report(path []string, format string, args ...any) {
	d.faults = append(d.faults, Fault{Key: toml.Key(path).String(), Msg: fmt.Sprintf(format, args...), path: path})
}

func (d *decoder) table(table map[string]toml.Primitive, v reflect.Value, path []string) {
	for key, p := range table {
		path := append(slices.Clone(path), key)
		f := field(v, key)
		value, line := d.value(p)
		d.lines[strings.Join(path, "\x00")] = line
		switch _, isTable := value.(map[string]any); {
		case !f.IsValid():
			d.report(path, "unknown key%s", d.hint(key, v))
		case f.Kind() == reflect.Struct && isTable:
			var sub map[string]toml.Primitive
			if err := d.md.PrimitiveDecode(p, &sub); err != nil {
				d.report(path, "%v", err)
			}
			d.table(sub, f, path)
		case f.Kind() == reflect.Struct:
			d.report(path, "must be a table, not %s", kindOf(value))
		default:
			if err := set(f, value); err != nil {
				d.report(path, "%v", err)
			}
		}
	}
}

// hint names the nearest key of the same table, or the same key in another table, or all keys of this one.
func (d *decoder) hint(key string, v reflect.Value) string {
	var here []string
	for i := range v.NumField() {
		here = append(here, tag(v.Type().Field(i)))
	}
	if h := nearest.Hint(key, here); h != "" {
		return h
	}
	for _, k := range d.all {
		if strings.HasSuffix(k, "."+key) {
			return ": did you mean " + k + "?"
		}
	}
	return " (known here: " + strings.Join(here, ", ") + ")"
}

// Set stores text in the value that key names, like a flag of a command line: Set("allreduce.type", "half").
func (e *Experiment) Set(key, text string) error { return Set(e, key, text) }

// Set stores text in the value that key names in the struct that e points to. Values of a list are separated by commas.
func Set(e any, key, text string) error {
	v := reflect.ValueOf(e).Elem()
	whole := v.Type()
	for _, k := range strings.Split(key, ".") {
		if v.Kind() != reflect.Struct {
			v = reflect.Value{}
		} else {
			v = field(v, k)
		}
		if !v.IsValid() {
			return Faults{{Key: key, Msg: "unknown key" + nearest.Hint(key, leaves(whole, ""))}}
		}
	}
	value, err := valueOf(v.Type(), text)
	if err == nil {
		err = set(v, value)
	}
	if err != nil {
		return Faults{{Key: key, Msg: err.Error()}}
	}
	return nil
}

// valueOf converts text to the TOML value for a field of type t.
func valueOf(t reflect.Type, text string) (any, error) {
	if t.Kind() == reflect.Slice {
		var all []any
		for part := range strings.SplitSeq(text, ",") {
			x, err := valueOf(t.Elem(), strings.TrimSpace(part))
			if err != nil {
				return nil, err
			}
			all = append(all, x)
		}
		return all, nil
	}
	switch t { // these two are not strings in TOML
	case reflect.TypeFor[int]():
		i, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("must be an integer, not %q", text)
		}
		return i, nil
	case reflect.TypeFor[bool]():
		b, err := strconv.ParseBool(text)
		if err != nil {
			return nil, fmt.Errorf("must be true or false, not %q", text)
		}
		return b, nil
	}
	return text, nil
}

// set stores a TOML value in f, which is not a table.
func set(f reflect.Value, value any) error {
	if f.Kind() == reflect.Pointer { // an optional value
		p := reflect.New(f.Type().Elem())
		if err := set(p.Elem(), value); err != nil {
			return err
		}
		f.Set(p)
		return nil
	}
	if f.Kind() == reflect.Slice {
		return setList(f, value)
	}
	if u, ok := f.Addr().Interface().(encoding.TextUnmarshaler); ok {
		switch value := value.(type) {
		case string:
			return u.UnmarshalText([]byte(value))
		case int64:
			return u.UnmarshalText(strconv.AppendInt(nil, value, 10))
		}
		if _, ok := u.(*Size); ok {
			return fmt.Errorf("must be an integer, or a string as \"4M\", not %s", kindOf(value))
		}
		return fmt.Errorf("must be a string, not %s", kindOf(value))
	}
	switch f.Interface().(type) {
	case string:
		if s, ok := value.(string); ok {
			f.SetString(s)
			return nil
		}
		return fmt.Errorf("must be a string, not %s", kindOf(value))
	case int:
		if i, ok := value.(int64); ok && !f.OverflowInt(i) {
			f.SetInt(i)
			return nil
		}
		return fmt.Errorf("must be an integer, not %s", kindOf(value))
	case bool:
		if b, ok := value.(bool); ok {
			f.SetBool(b)
			return nil
		}
		return fmt.Errorf("must be true or false, not %s", kindOf(value))
	}
	return fmt.Errorf("values of type %v are not read yet", f.Type()) // a test decodes into every field
}

// setList stores the values of a list, or a single value as a list.
func setList(f reflect.Value, value any) error {
	values, many := value.([]any)
	if !many {
		values = []any{value}
	}
	if len(values) == 0 {
		return errors.New("must have a value at least, not an empty array")
	}
	all := reflect.MakeSlice(f.Type(), len(values), len(values))
	for i, x := range values {
		if err := set(all.Index(i), x); err != nil {
			return err
		}
	}
	f.Set(all)
	return nil
}

// kindOf is the usual name of the TOML value's type.
func kindOf(value any) string {
	switch value := value.(type) {
	case string:
		return "a string"
	case int64:
		return "the integer " + strconv.FormatInt(value, 10)
	case float64:
		return "a float"
	case bool:
		return "a boolean"
	case map[string]any:
		return "a table"
	case []any, []map[string]any:
		return "an array"
	}
	return "a date or time"
}

// field returns the field of the struct v with tag key; it is invalid if there is none.
func field(v reflect.Value, key string) reflect.Value {
	for i := range v.NumField() {
		if tag(v.Type().Field(i)) == key {
			return v.Field(i)
		}
	}
	return reflect.Value{}
}

func tag(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
	return name
}

// leaves lists the dotted keys of t's values.
func leaves(t reflect.Type, prefix string) []string {
	var keys []string
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Type.Kind() == reflect.Struct {
			keys = append(keys, leaves(f.Type, prefix+tag(f)+".")...)
		} else {
			keys = append(keys, prefix+tag(f))
		}
	}
	return keys
}
