"""What a store promises."""
